"""Studies that measure the harness itself; README.md lists the claim that each study supports."""
