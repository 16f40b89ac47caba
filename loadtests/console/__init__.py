"""How light the console's pages are for a large installation."""
