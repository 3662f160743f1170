"""Forward passes as in the papers, which record their dispatches."""
