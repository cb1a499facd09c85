"""Current troubles as this gateway sees them, with advice."""
