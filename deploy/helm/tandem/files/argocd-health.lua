-- Health of ModelServices and EnginePools for Argo CD, from their conditions: what is stalled is degraded, what is
-- ready or sleeps at zero workers is healthy, a paused rollout is suspended, everything else is under way.
local conditions = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    conditions[condition.type] = condition
  end
end
local ready, stalled, available = conditions.Ready, conditions.Stalled, conditions.Available

if ready == nil or (obj.status.observedGeneration ~= nil and obj.status.observedGeneration ~= obj.metadata.generation) then
  return {status = "Progressing", message = "The operator has not looked at this specification yet."}
end
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.message or stalled.reason}
end
if ready.status == "True" or (available ~= nil and available.reason == "ScaledToZero") then
  return {status = "Healthy", message = ready.message or ""}
end
if ready.reason == "Paused" then
  return {status = "Suspended", message = ready.message or ready.reason}
end
return {status = "Progressing", message = ready.message or ready.reason or ""}
