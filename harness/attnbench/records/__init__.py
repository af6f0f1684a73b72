"""What a run stores: record types, the run file, and the machine that a run came from. No torch is imported here."""
