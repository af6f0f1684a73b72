"""Studies that show why attention is as it is: what is computed, each in a file of its own.

They run in a process of their own (``attnbench.study.process``), which gives plain lists and numbers;
``attnbench.report.studies`` draws them.
"""
