"""The integrations, each with its real framework."""
