"""A scratch repository with one implementation, and its commits."""

import subprocess
from pathlib import Path

__all__ = ["SOURCE", "Repository"]

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F


class Attend(nn.MultiheadAttention):
    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        width, heads, batch = self.embed_dim, self.num_heads, len(query)
        bias = self.in_proj_bias
        parts = zip((query, key, value), self.in_proj_weight.chunk(3), bias.chunk(3))
        q, k, v = (F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in parts)
        mask = attn_mask
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, (batch, heads))
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask
        output = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(output.transpose(1, 2).flatten(2)), None
"""


class Repository:
    """A git repository with the file ``mine.py``, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit(SOURCE)

    def git(self, *words: str) -> str:
        """Run git in the repository, and return what it prints."""
        settings = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *settings, *words], cwd=self.folder, capture_output=True, text=True, check=True
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, source: str) -> None:
        """Write the implementation, without a commit."""
        (self.folder / "mine.py").write_text(source)

    def commit(self, source: str) -> str:
        """Commit a version of the implementation, and return its commit."""
        self.write(source)
        self.git("add", "mine.py")
        self.git("commit", "-q", "-m", "a version")
        return self.git("rev-parse", "HEAD")

    def change(self, before: str, after: str) -> str:
        """Commit a version with a part of the first one replaced, and return its commit."""
        assert before in SOURCE
        return self.commit(SOURCE.replace(before, after))
