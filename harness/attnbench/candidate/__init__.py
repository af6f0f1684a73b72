"""The candidate: one implementation built for one case and called there, with torch's compilers and global state."""
