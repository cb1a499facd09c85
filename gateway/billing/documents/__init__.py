"""An invoice as a printable HTML page, a PDF and CSV: the same figures, exact to the nano-dollar."""
