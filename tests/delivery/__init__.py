"""Whether what `configure` builds delivers, tells what it lost, and keeps secrets."""
