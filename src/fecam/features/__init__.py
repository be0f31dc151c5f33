"""Features of a data set, extracted once and kept."""
