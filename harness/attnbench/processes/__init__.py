"""Child processes and their descendants. Importing this package does not import torch."""
