"""Stored records: their types, the run file, and the description of the machine. Torch is not imported here."""
