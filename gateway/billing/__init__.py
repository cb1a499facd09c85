"""Money: the price book."""
