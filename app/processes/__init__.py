"""Child processes with limits on time, memory and output, for work on untrusted files."""
