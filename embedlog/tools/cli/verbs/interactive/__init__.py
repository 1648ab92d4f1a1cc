"""The verbs that take over the terminal."""
