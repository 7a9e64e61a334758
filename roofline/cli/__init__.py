"""The command line: one thin file per command group, each parse → call → render, imported when its command runs."""
