-- now: reads the clock (clock.lua), and returns it in ms.
return now
