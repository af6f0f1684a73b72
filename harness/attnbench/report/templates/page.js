// Sorting, filtering, copying, and opening of what an address points into. The page is complete without it.
(() => {
  "use strict";

  // How long a copy button says that it copied, in milliseconds.
  const SAID_MS = 2000;

  const words = (text) => text.replace(/\s+/g, " ").trim();

  function keyOf(row, column, numeric) {
    const cell = row.cells[column];
    const text = cell ? (cell.dataset.value ?? words(cell.textContent)) : "";
    if (!numeric) return text.toLowerCase();
    // Numbers of the page may have spaces between thousands and a typographic minus.
    return Number.parseFloat(text.replace(/(\d)[\s\u00a0\u202f](?=\d{3})/g, "$1").replace("\u2212", "-"));
  }

  function compare(one, other, numeric) {
    return numeric ? one - other : one.localeCompare(other, "en", { numeric: true });
  }

  // Rows without a number stay last in both directions.
  function sortRows(table, column, numeric, descending) {
    const empty = (key) => (numeric ? Number.isNaN(key) : key === "");
    for (const body of table.tBodies) {
      const keyed = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column, numeric) }));
      const full = keyed.filter(({ key }) => !empty(key));
      full.sort((one, other) => (descending ? -1 : 1) * compare(one.key, other.key, numeric));
      const rest = keyed.filter(({ key }) => empty(key));
      body.append(...full.concat(rest).map(({ row }) => row));
    }
  }

  function makeSortable(table) {
    const heads = table.querySelectorAll("thead th[data-sort]");
    for (const head of heads) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortRows(table, head.cellIndex, head.dataset.sort === "number", descending);
      });
    }
  }

  function makeFilterable(table) {
    const place = table.closest(".scroll") ?? table;
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "Filter rows";
    field.setAttribute("aria-label", `Filter rows: ${place.getAttribute("aria-label") ?? "table"}`);
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    const line = document.createElement("p");
    line.className = "filter";
    line.append(field, " ", count);
    place.before(line);
    let texts = null;
    field.addEventListener("input", () => {
      texts ??= Array.from(table.tBodies).flatMap((body) =>
        Array.from(body.rows, (row) => ({ row, text: row.textContent.toLowerCase() })));
      const wanted = words(field.value.toLowerCase()).split(" ");
      let shown = 0;
      for (const { row, text } of texts) {
        row.hidden = !wanted.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = field.value ? `${shown} of ${texts.length} rows` : "";
    });
  }

  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without a clipboard, or without the permission: by the command of older browsers.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      if (!done) throw new Error("not copied");
    }
  }

  function makeCopyable(button) {
    const name = button.textContent;
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      button.textContent = await copyText(button.dataset.copy).then(() => "copied", () => "not copied");
      button.focus();
      setTimeout(() => { button.textContent = name; }, SAID_MS);
    });
  }

  function openTarget(hash) {
    let name;
    try {
      name = decodeURIComponent(hash.slice(1));
    } catch {
      return;
    }
    const target = name ? document.getElementById(name) : null;
    if (!target) return;
    for (let one = target; one; one = one.parentElement) {
      if (one.tagName === "DETAILS") one.open = true;
    }
    target.scrollIntoView();
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("table.filterable").forEach(makeFilterable);
  document.querySelectorAll("button.copy[data-copy]").forEach(makeCopyable);
  window.addEventListener("hashchange", () => openTarget(location.hash));
  document.addEventListener("click", (event) => {
    // A second click on the same link changes no address.
    const link = event.target.closest?.('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) openTarget(location.hash);
  });
  openTarget(location.hash);

  // For browsers in which print.css cannot open what is folded.
  const opened = [];
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details.print-open:not([open])")) {
      one.open = true;
      opened.push(one);
    }
  });
  window.addEventListener("afterprint", () => {
    while (opened.length) opened.pop().open = false;
  });
})();
