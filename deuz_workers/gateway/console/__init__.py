"""The console: pages of the gateway for people. Who they are, what they are shown, and what they answer.

Every page is made on the server and works without a script; the script only keeps it fresh and shows text while it is written.
What a page shows is what the gateway's operations tell the same principal: no prompts, no transcript, no results of tools,
arguments only of calls that wait for somebody.
"""
