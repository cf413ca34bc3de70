"""Results for people: in the terminal, as a page, as pictures. Nothing is computed here that comparison.py did not."""
