"""The verbs: each module has the click command of its name."""
