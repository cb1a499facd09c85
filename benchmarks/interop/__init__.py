"""Checks that pools served by other engines' OpenAI servers take part in routing, limits and metering."""
