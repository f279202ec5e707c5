"""Tables, pictures and the page of a bench."""
