"""The real code under a scheduler: a controller runs exactly one of several processes at a time."""
