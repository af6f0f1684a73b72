"""Child processes, their requests and their descendants. Importing this package does not import torch."""
