"""`heal --rounds`: shrink by a part, heal, and shrink again, with the sizes between."""
