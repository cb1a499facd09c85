"""The platform's tables and rules. Nothing here depends on an entry point: routes and pages live above."""
