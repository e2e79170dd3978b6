"""A folder for PYTHONPATH: Python imports ``sitecustomize`` from it, and nothing else is in it."""
