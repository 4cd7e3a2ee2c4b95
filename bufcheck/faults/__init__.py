"""One file per fault, named after it; `fault` runs them."""
