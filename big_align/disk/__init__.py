"""Files as others have left them on a disk: opened only if they are files, and compared."""
