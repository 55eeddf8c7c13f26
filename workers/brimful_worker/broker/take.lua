-- Takes messages from queues and notes them as unacknowledged, in one step: a worker that dies in between loses none.
-- KEYS: unacked, unacked_index (kombu's), then lists of queues, the most urgent first.
-- ARGV: number of messages at most; the time, Unix seconds.
-- Returns for each message: the number of its list from 1, the delivery tag under which it was noted ('' if it is for
-- the caller to note), and its text.
local unacked, index = KEYS[1], KEYS[2]
local most, now = tonumber(ARGV[1]), ARGV[2]

local function note(text)
    local decoded, item = pcall(cjson.decode, text)
    local properties = decoded and type(item) == 'table' and item.properties
    local delivery = type(properties) == 'table' and properties.delivery_info
    if type(delivery) ~= 'table' then return '' end
    local tag, exchange, routing_key = properties.delivery_tag, delivery.exchange, delivery.routing_key
    if type(tag) ~= 'string' or tag == '' or type(exchange) ~= 'string' or type(routing_key) ~= 'string' then return '' end
    local noted = '[' .. text .. ', ' .. cjson.encode(exchange) .. ', ' .. cjson.encode(routing_key) .. ']'
    for _, done in ipairs({redis.pcall('ZADD', index, now, tag), redis.pcall('HSET', unacked, tag, noted)}) do
        if type(done) == 'table' and done.err then return '' end
    end
    return tag
end

local taken = {}
for number = 3, #KEYS do
    while #taken < most do
        local text = redis.call('RPOP', KEYS[number])
        if not text then break end
        taken[#taken + 1] = {number - 2, note(text), text}
    end
end
return taken
