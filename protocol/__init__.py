"""Plain typed data that crosses process boundaries. Imports none of our other packages."""
