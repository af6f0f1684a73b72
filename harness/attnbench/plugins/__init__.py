"""Finding and loading plug-ins: entry points, modules, files and other source trees; adapting what was found."""
