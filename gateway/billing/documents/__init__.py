"""An invoice as a page that prints well, as a PDF and as CSV: the same figures, exact to the nano-dollar."""
