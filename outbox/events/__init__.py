"""Events: how they are emitted, what is stored, and the forms in which destinations get them."""
