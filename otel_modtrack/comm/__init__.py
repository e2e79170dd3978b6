"""Collectives: seen as they are launched, counted on the module that launched them."""
