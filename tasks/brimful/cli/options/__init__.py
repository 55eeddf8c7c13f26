"""Options that several commands have. Imported by the commands only."""
