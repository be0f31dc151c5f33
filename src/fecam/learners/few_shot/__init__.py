"""Few-shot methods: a first task with all its images, then tasks of a few images per class."""
