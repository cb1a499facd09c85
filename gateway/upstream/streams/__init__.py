"""Reading members' answers: events pass through as bytes, what is meant for the gateway is taken out and counted."""
