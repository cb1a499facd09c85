"""Tables and rules of what the platform knows. Nothing here knows a door: routes and pages live above."""
