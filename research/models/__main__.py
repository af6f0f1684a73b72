"""Measure all deviations and print their table: ``python -m research.models > research/data/models.md``."""

import torch
import transformers

from research.models import deviations
from research.models.table import format_table, measure


def main() -> None:
    """Print the table, with the versions and what each function compares."""
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print("# Deviations inside models of transformers\n")
    print(f"With transformers {transformers.__version__} and torch {torch.__version__} on a CPU, in eager unless said.")
    print("Differences are the largest of the hidden states of the last layer, whose values are about 1 in size.")
    print("In the control, nothing but rounding may differ. *Deviates* says what is wrong:")
    print("the model, attnbench, which accused the model, or nothing.\n")
    print(format_table(measure()))
    print("What is compared:\n")
    for name in deviations.__all__:
        words = " ".join((getattr(deviations, name).__doc__ or "").split())
        print(f"- `{name}`: {words}")


if __name__ == "__main__":
    main()
