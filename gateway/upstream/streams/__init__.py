"""Reads members' answers: events pass through as bytes; parts meant for the gateway are removed and counted."""
