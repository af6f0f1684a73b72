"""What a command, a call from Python or a configuration file asks for, as one frozen value for each kind of job.

In come the values of options, arguments or keys, as words or as Python values; out come jobs, their form in a run file,
and the command lines that repeat them. Nothing here measures, prints, or knows how an option is parsed.
"""
