{{/* Names and labels. There is one installation per namespace, so names are fixed: other parts rely on them. */}}

{{- define "tandem.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- if .component }}
{{ include "tandem.selector" . }}
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* `name`, and optionally `component` and `namespace`. */}}
{{- define "tandem.metadata" -}}
name: {{ .name }}
{{- if not .clusterScoped }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels: {{- include "tandem.labels" . | nindent 2 }}
{{- with .labels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .annotations .root.Values.commonAnnotations }}
annotations:
  {{- with .root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Of an image: registry, then digest or tag; the tag is the chart's version by default. */}}
{{- define "tandem.image" -}}
{{- $image := .image -}}
{{- $repository := $image.repository -}}
{{- with .root.Values.image.registry }}{{ $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}{{ end -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $repository $image.digest }}
{{- else -}}
{{ printf "%s:%s" $repository ($image.tag | default .root.Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* The namespaces of tenants, as JSON; refuses what the schema cannot. */}}
{{- define "tandem.tenants" -}}
{{- $found := list -}}
{{- range .Values.tenants }}{{ $found = append $found .namespace }}{{ end -}}
{{- if $found -}}
  {{- if or .Values.namespaces .Values.allNamespaces }}{{ fail "tenants name the namespaces of ModelServices: leave namespaces and allNamespaces out" }}{{ end -}}
  {{- if has .Release.Namespace $found }}{{ fail (printf "tenants: %s is the namespace of the release, whose Secrets are the installation's; give the tenant another one" .Release.Namespace) }}{{ end -}}
  {{- if ne (len $found) (len (uniq $found)) }}{{ fail "tenants: each namespace may be named once, with all its patterns in models" }}{{ end -}}
  {{- if .Values.router.cache.credentialsSecret }}{{ fail "tenants: router.cache.credentialsSecret would be used for the models of all of them; name one for each in tenants[].credentialsSecret" }}{{ end -}}
  {{- if and .Values.kvStore.enabled (not (has .Values.kvStore.namespace $found)) }}{{ fail "kvStore.namespace: name the tenant's namespace that the ModelService is in" }}{{ end -}}
{{- end -}}
{{- dict "all" $found | toJson -}}
{{- end }}

{{/* Which names the models of each may have, for operator and routers. */}}
{{- define "tandem.tenantNames" -}}
{{- $found := list -}}
{{- range .Values.tenants }}{{ $namespace := .namespace }}{{ range .models }}{{ $found = append $found (printf "%s=%s" $namespace .) }}{{ end }}{{ end -}}
{{ join "," $found }}
{{- end }}

{{- define "tandem.tenantKeysSecret" -}}
{{- if .Values.kvKey.existingSecret -}}
{{- required (printf "tenants: make a Secret in %s with each tenant's key under the name of its namespace, and name it in kvKey.tenantsSecret" .Release.Namespace) .Values.kvKey.tenantsSecret -}}
{{- else -}}
tandem-tenant-keys
{{- end -}}
{{- end }}

{{/* The namespaces of ModelServices, as JSON: `fromJson` takes an object alone, hence the key. */}}
{{- define "tandem.namespaces" -}}
{{- $namespaces := concat (include "tandem.tenants" . | fromJson).all .Values.namespaces | default (list .Release.Namespace) -}}
{{- dict "all" (uniq $namespaces) | toJson -}}
{{- end }}

{{/* Where Secrets have to be: with the release, and with every ModelService. */}}
{{- define "tandem.secretNamespaces" -}}
{{- $namespaces := concat (list .Release.Namespace) (include "tandem.tenants" . | fromJson).all .Values.namespaces -}}
{{- if and .Values.kvStore.enabled .Values.kvStore.namespace }}{{ $namespaces = append $namespaces .Values.kvStore.namespace }}{{ end -}}
{{- dict "all" (uniq $namespaces) | toJson -}}
{{- end }}

{{- define "tandem.kvKeySecret" -}}
{{- .Values.kvKey.existingSecret | default "tandem-kv-key" -}}
{{- end }}

{{- define "tandem.tlsSecret" -}}
{{- if eq .Values.tls.source "existing" -}}
{{- required "tls.source is existing: name the Secret in tls.existingSecret" .Values.tls.existingSecret -}}
{{- else -}}
tandem-tls
{{- end -}}
{{- end }}

{{/* The name in the certificate that all parts share, by which they know each other. Tenants have their own. */}}
{{- define "tandem.tlsName" -}}
tandem-worker
{{- end }}

{{/* The same of the workers in a namespace: `root`, `namespace`. */}}
{{- define "tandem.workerName" -}}
{{- include "tandem.tlsName" .root -}}
{{- if has .namespace (include "tandem.tenants" .root | fromJson).all }}.{{ .namespace }}{{ end -}}
{{- end }}

{{/* All names in the certificate of a namespace, with commas. */}}
{{- define "tandem.namesIn" -}}
{{- if has .namespace (include "tandem.tenants" .root | fromJson).all -}}
{{ include "tandem.workerName" . }}
{{- else -}}
{{ include "tandem.tlsNames" .root }}
{{- end -}}
{{- end }}

{{/* All names in it, with commas: KEDA knows the operator by that of its Service. */}}
{{- define "tandem.tlsNames" -}}
{{- $operator := printf "tandem-operator.%s" .Release.Namespace -}}
{{ join "," (list (include "tandem.tlsName" .) "tandem-router" "tandem-operator" $operator (printf "%s.svc" $operator) "localhost") }}
{{- end }}

{{- define "tandem.ownRedis" -}}
{{- if and .Values.redis.enabled (not .Values.redis.url) (not .Values.redis.existingSecret) -}}yes{{- end -}}
{{- end }}

{{/* The Secret that says where Redis is; empty without one. */}}
{{- define "tandem.redisSecret" -}}
{{- if .Values.redis.existingSecret -}}
{{ .Values.redis.existingSecret }}
{{- else if or .Values.redis.url .Values.redis.enabled -}}
tandem-redis
{{- end -}}
{{- end }}

{{/* Its key. `helm upgrade --reuse-values` brings the values of a version that did not know it. */}}
{{- define "tandem.redisKey" -}}
{{- ternary (.Values.redis.existingSecretKey | default "url") "url" (not (empty .Values.redis.existingSecret)) -}}
{{- end }}

{{/* What the index asks of Redis, by itself and in its scripts. */}}
{{- define "tandem.redisCommands" -}}
+ping +role +info +script|load +eval +evalsha +time +get +set +del +exists +incr +expire +pexpire +zadd +zrem +zrange +zremrangebyscore +hget +hset +hdel +hgetall
{{- end }}

{{/* A quantity such as 8Gi as bytes. */}}
{{- define "tandem.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[A-Za-z]*$" .) | int64) -}}
{{- end }}
