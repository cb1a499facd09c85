"""Tools that the platform calls itself: their owners, their URLs, arguments and credentials."""
