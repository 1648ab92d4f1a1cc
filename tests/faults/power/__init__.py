"""Power losses, simulated from a recording and on a disk image."""
