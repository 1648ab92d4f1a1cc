"""The widgets of the console: tables that keep their cursor, and dialogs."""
