"""Programs that do not know of us, run as their users would."""
