{{/* A StatefulSet's name of more than 52 characters makes a label that is too long: 34, a dash, and 17 of an engine. */}}
{{- define "florin.name" -}}
{{- .Release.Name | trunc 34 | trimSuffix "-" -}}
{{- end -}}

{{- define "florin.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "florin.labels" -}}
{{ include "florin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "florin.image" -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}

{{- define "florin.gatewayKind" -}}
{{- ternary "StatefulSet" "Deployment" .Values.gateway.keepState.enabled -}}
{{- end -}}

{{- define "florin.scheme" -}}
{{- ternary "https" "http" (ne .Values.gateway.tlsSecretName "") -}}
{{- end -}}

{{- define "florin.adminUrl" -}}
{{ include "florin.scheme" . }}://{{ include "florin.name" . }}-admin.{{ .Release.Namespace }}.svc:8081
{{- end -}}

{{/* The domain of an engine's pods: of the context, and the name of its StatefulSet and Service. */}}
{{- define "florin.engineDomain" -}}
{{ index . 1 }}.{{ (index . 0).Release.Namespace }}.svc
{{- end -}}

{{/* Which service accounts may enrol engines, and what their registrations are pinned to. */}}
{{- define "florin.hostSubjects" -}}
{{- $subjects := dict -}}
{{- range .Values.engines -}}
{{- $name := printf "%s-%s" (include "florin.name" $) .name -}}
{{- $pins := dict "base" .baseModel "gpu_type" .gpuType "gpu_count" (int .gpus) "purchase" (.purchase | default "on_demand") "labels" (.labels | default dict) -}}
{{- if .region -}}{{- $_ := set $pins "region" .region -}}{{- end -}}
{{- if $.Values.engine.tls.enabled -}}
{{- $_ := set $pins "address" (printf "{engine}.%s" (include "florin.engineDomain" (list $ $name))) -}}
{{- end -}}
{{- $_ := set $subjects (printf "system:serviceaccount:%s:%s" $.Release.Namespace $name) $pins -}}
{{- end -}}
{{- toJson $subjects -}}
{{- end -}}

{{/* kubelets have no client certificate: with mutual TLS, the container asks itself. */}}
{{- define "florin.engineProbe" -}}
{{- if .tls -}}
exec: { command: [/opt/florin/bin/python, -m, deploy.images.healthcheck, "{{ .number }}", /health] }
{{- else -}}
httpGet: { path: /health, port: {{ .port }} }
{{- end -}}
{{- end -}}

{{- define "florin.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "florin.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}
